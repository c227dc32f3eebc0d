#!/usr/bin/env python3
"""Lets the model call a function: declares get_current_weather, answers the call, prints what the model makes of the answer.

    tool.py [--endpoint tcp://127.0.0.1:4550] [Weather in Liverpool?]
"""
import argparse
import json
import sys

from althing_client import AlthingError, Client, Message, Sampling, Tool
from server_options import add_server_options, curve_of

WEATHER = Tool('get_current_weather', 'Get the weather for a city.',
               {'type': 'object', 'properties': {'city': {'type': 'string'}}, 'required': ['city']})
ROUNDS_MAX = 4


def get_current_weather(city):
    """A real program would ask a weather service here."""
    return {'temperature': 5 + len(city), 'conditions': 'cloudy'}


def tool_answer(call):
    """The message that answers a call."""
    if call.name != WEATHER.name:
        content = {'error': f'there is no function {call.recipient}'}
    else:
        try:
            content = get_current_weather(**call.parse())
        except (TypeError, ValueError) as error:  # models make mistakes: tell them, they often do better next time
            content = {'error': str(error)}
    print(f'{call.recipient}({call.arguments}) -> {json.dumps(content)}')
    return call.answer(json.dumps(content))


def main():
    parser = argparse.ArgumentParser(description='Let a model on an Althing server call a function.')
    add_server_options(parser)
    parser.add_argument('--effort', choices=['low', 'medium', 'high'], default='low')
    parser.add_argument('prompt', nargs='*', default=['Weather in Liverpool?'])
    options = parser.parse_args()

    conversation = [Message('user', ' '.join(options.prompt))]
    with Client(options.endpoint, curve=curve_of(options), name='althing-tool.py/0.1') as client:
        for _ in range(ROUNDS_MAX):
            reply = client.ask(conversation, tools=[WEATHER], effort=options.effort, sampling=Sampling(temperature=0))
            conversation += reply.messages
            if not reply.tool_calls:
                print(reply.text)
                return
            conversation += [tool_answer(call) for call in reply.tool_calls]
    sys.exit(f'tool.py: the model still calls functions after {ROUNDS_MAX} rounds')


if __name__ == '__main__':
    try:
        main()
    except AlthingError as error:
        sys.exit(f'tool.py: {error}')
    except KeyboardInterrupt:
        sys.exit(130)
