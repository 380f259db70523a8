"""The hub: hosts gangs whose replicas run on other machines, and speaks with the agents there."""
