"""PostgreSQL, Valkey and S3 in child processes, and the program around them. Imports no Django."""
