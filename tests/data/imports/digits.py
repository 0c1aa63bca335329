"""The program that perun measures: see make.py."""

from make import train

train()
