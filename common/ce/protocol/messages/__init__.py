"""What coordinator and sites send each other: tasks, answers, the steps and the names of arrays."""
