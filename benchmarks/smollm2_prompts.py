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
courage, the Mediterranean Sea, rockets, satellites, telescopes, clouds, thunderstorms, snow, autumn
"""


def make_prompts(count: int, seed: int = 0) -> list[str]:
    """So many different prompts, or as many as there are, in a random order."""
    words = " ".join(topics.split()).split(", ")
    every = [ask.format(word) for word in words for ask in asks]
    random.Random(seed).shuffle(every)
    return every[:count]
