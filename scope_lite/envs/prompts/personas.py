"""Personas for the simulators of text worlds. Our own, nobody real; the held-out ones are for evaluation."""

from scope_lite.envs.prompts.persuadee import PERSONAS

PERSUADEES = {
    "train": PERSONAS,
    "test": (
        "Age: 41\nWork: bus driver\nFamily: divorced, one teenager\nCharacter: friendly, short of money",
        "Age: 29\nWork: graphic designer\nPolitics: liberal\nCharacter: outgoing, gives to animal shelters every month",
        "Age: 58\nWork: farmer\nReligion: Protestant\nCharacter: reserved, conscientious, helps neighbours rather than "
        "organisations",
        "Age: 19\nWork: student\nFamily: lives with parents\nCharacter: easily bored, not conscientious",
        "Age: 36\nWork: researcher\nReligion: none\nCharacter: wants numbers before deciding, not easily moved",
        "Age: 49\nWork: care worker\nFamily: three children\nCharacter: warm, easily moved by stories of children",
    ),
}
"""The person who is asked to donate, in the labelled lines of ``envs.p4g.Person.as_text``."""

CUSTOMERS = {
    "train": (
        "Character: patient and polite, answers in full sentences",
        "Character: in a hurry, answers in a few words",
        "Character: chatty, tells more than is asked, easily sidetracked",
        "Character: unsure what to do, asks for advice before deciding",
    ),
    "test": (
        "Character: annoyed, expects a quick solution, stays civil",
        "Character: distrustful, asks why each detail is needed",
        "Character: new to online shopping, needs simple words",
    ),
}
"""How the customer of a tau2-bench scenario talks; what they want is the scenario's."""

ENGINEERS = {
    "train": (
        "Character: writes long, friendly messages",
        "Character: answers in a few words",
        "Character: asks for the partner's plan, and adapts to it",
        "Character: announces a plan, and keeps to it",
    ),
    "test": (
        "Character: changes their mind once the partner has a better idea",
        "Character: works alone, and tells only what is asked",
        "Character: careful, repeats what was agreed",
    ),
}
"""How the partner on a CooperBench task works; what they build is the task's."""
