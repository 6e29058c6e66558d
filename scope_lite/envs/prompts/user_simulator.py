"""The customer of a tau2-bench scenario. Our wording of the task; the scenario's text comes from the benchmark."""

SYSTEM = """\
You are a customer who is chatting with a customer service agent. You are the customer, not the agent.

$scenario

Write only the customer's next message: one or two short sentences, in the first person, in everyday words. \
Do not invent facts that are not given above, and tell details only when the agent asks for them. \
When everything you wanted is done, write ###STOP###."""

AGENT_OPENING = "Hi! How can I help you today?"
USER_OPENING = "Hi, I need help with something I bought or booked."
AGENT_FOLLOW_UP = "I am happy to help. To find your account, please tell me your name and zip code, or your user id."
