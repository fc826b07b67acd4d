"""The Kubernetes that the tests run on, and what runs on it."""
