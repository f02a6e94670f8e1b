"""Prompts on narrow topics, made of words and sentences: thousands of them, the same ones every time.

Knows nothing of models.
"""

from __future__ import annotations

import random

asks = (
    "What is {}?",
    "Explain {} to a child.",
    "Describe {} in one paragraph.",
    "Give me five facts about {}.",
    "Why is {} important?",
    "Write a short story about {}.",
    "List three examples that have to do with {}.",
    "What are the benefits of {}?",
    "What are the main problems with {}?",
    "Write a poem about {}.",
    "How would you introduce {} to somebody who has never heard of it?",
    "Summarize the history of {}.",
    "What should a beginner know about {}?",
    "Write a short email to a friend about {}.",
    "What do people often get wrong about {}?",
    "Give me some advice about {}.",
    "How does {} affect our daily life?",
    "Write three questions for a quiz about {}.",
    "What is the future of {}?",
    "Tell me something surprising about {}.",
    "Compare {} with something similar.",
    "Write a product description that mentions {}.",
    "Write a dialogue between two friends who talk about {}.",
    "How can I learn more about {}?",
    "In two sentences, what is {}?",
    "Explain how {} works, step by step.",
    "What are the different kinds of {}?",
    "Write an introduction to an essay about {}.",
    "What would the world be like without {}?",
    "What are common questions about {}?",
    "Who should care about {}, and why?",
    "Write a short speech about {}.",
    "What is the difference between good and bad {}?",
    "Write a diary entry about {}.",
    "Make a list of words that have to do with {}.",
    "What would an expert say about {}?",
    "Write a headline and a short news article about {}.",
    "How has {} changed over the last hundred years?",
    "Describe {} to a visitor from another planet.",
    "What questions should I ask before I learn about {}?",
    "Write a letter to a teacher about {}.",
    "What are the most important terms about {}?",
    "Tell me a joke about {}.",
    "Plan a lesson about {} for a class of ten-year-olds.",
    "What can we learn from {}?",
    "Write a review of a book about {}.",
    "Give me three reasons to like {}.",
    "Give me three reasons to dislike {}.",
    "What do scientists know about {}?",
    "Write a conversation between a teacher and a student about {}.",
    "How do different cultures see {}?",
    "What would you put into a museum of {}?",
    "Write a slogan for a campaign about {}.",
    "What skills does one need for {}?",
    "Describe a day that is all about {}.",
    "What are some myths about {}?",
    "Write a short blog post about {}.",
    "How does one get started with {}?",
    "What does {} cost, and is it worth it?",
    "Sum up {} in five bullet points.",
)
topics = """
gravity, electricity, magnetism, photosynthesis, evolution, climate change, the water cycle, volcanoes,
earthquakes, the solar system, the moon, black holes, atoms, molecules, vaccines, the human heart, the
brain, sleep, nutrition, exercise, yoga, meditation, running, swimming, football, basketball, tennis,
chess, painting, photography, music, the piano, the guitar, dancing, theatre, cinema, poetry, novels,
libraries, museums, architecture, bridges, railways, bicycles, electric cars, airplanes, ships, the
internet, social media, computers, programming, Python, databases, artificial intelligence, robots,
smartphones, video games, privacy, cryptography, mathematics, algebra, geometry, statistics,
probability, economics, money, banks, inflation, taxes, trade, entrepreneurship, marketing, leadership,
teamwork, communication, education, teaching, learning a language, writing, reading, critical thinking,
philosophy, ethics, democracy, human rights, law, history, ancient Rome, ancient Egypt, the Renaissance,
the Industrial Revolution, Paris, London, Tokyo, New York, India, Brazil, Kenya, Australia, the Amazon
rainforest, the Sahara, the Alps, the Pacific Ocean, rivers, forests, deserts, islands, beaches,
gardening, farming, bees, butterflies, dogs, cats, horses, elephants, whales, dolphins, birds, penguins,
trees, flowers, mushrooms, coffee, tea, chocolate, bread, cheese, rice, pasta, soup, cooking, baking,
vegetarian food, renewable energy, solar panels, wind power, recycling, plastic, clean water, public
transport, tourism, volunteering, friendship, family, happiness, stress, patience, creativity, honesty,
courage, the Mediterranean Sea, rockets, satellites, telescopes, clouds, thunderstorms, snow, autumn,
winter, spring, summer, the sun, comets, galaxies, the speed of light, time, energy, sound, light, color,
heat, water, air, fire, salt, sugar, gold, iron, glass, paper, wood, stone, cotton, wool, leather, oil,
coal, nuclear power, batteries, engines, clocks, maps, compasses, calendars, money in ancient times, coins,
markets, shops, restaurants, hotels, airports, harbors, tunnels, towers, castles, pyramids, temples,
gardens, parks, playgrounds, schools, universities, hospitals, doctors, nurses, firefighters, farmers,
teachers, engineers, scientists, artists, musicians, writers, actors, athletes, explorers, sailors,
astronauts, kings and queens, presidents, elections, newspapers, radio, television, podcasts, blogs,
websites, search engines, email, spreadsheets, operating systems, open source software, machine learning,
computer chips, drones, 3D printing, virtual reality, genetics, cells, bacteria, viruses, medicine,
surgery, teeth, eyes, ears, skin, bones, muscles, the lungs, the stomach, dreams, memory, emotions,
fear, anger, love, hope, trust, kindness, humor, fashion, shoes, hats, jewelry, furniture, houses,
kitchens, toys, puzzles, board games, card games, magic tricks, fairy tales, legends, dragons, pirates,
knights, holidays, birthdays, weddings, festivals, camping, hiking, climbing, skiing, surfing, fishing,
sailing, cycling, knitting, sewing, pottery, drawing, sculpture, opera, jazz, rock music, folk songs,
drums, the violin, Berlin, Rome, Madrid, Cairo, Sydney, Canada, Mexico, Japan, China, Iceland, Greece,
the Himalayas, the Nile, the Grand Canyon, Antarctica, the Atlantic Ocean, coral reefs, caves, glaciers,
wolves, bears, lions, tigers, monkeys, giraffes, sharks, octopuses, frogs, snakes, turtles, ants, spiders,
owls, eagles, chickens, cows, sheep, roses, oak trees, apples, bananas, oranges, tomatoes, potatoes,
carrots, onions, garlic, pepper, honey, milk, eggs, butter, pizza, sandwiches, salads, ice cream, juice
"""


def make_prompts(count: int, seed: int = 0) -> list[str]:
    """So many different prompts, or as many as there are, in a random order."""
    words = " ".join(topics.split()).split(", ")
    every = [ask.format(word) for word in words for ask in asks]
    random.Random(seed).shuffle(every)
    return every[:count]
