#!/usr/bin/env python3
"""Lets the model call a function: declares get_current_weather, answers the call, prints what the model makes of the answer.

    tool.py [--endpoint tcp://127.0.0.1:4550] [Weather in Liverpool?]
"""
import argparse
import json
import sys

from session import ServerError, Session, collect

WEATHER = {
    'name': 'get_current_weather',
    'description': 'Get the weather for a city.',
    'parameters': {'type': 'object', 'properties': {'city': {'type': 'string'}}, 'required': ['city']},
}
ROUNDS_MAX = 4


def get_current_weather(city):
    """A real program would ask a weather service here."""
    return {'temperature': 5 + len(city), 'conditions': 'cloudy'}


def tool_answer(call):
    """The message that answers a call: from the function, to the assistant, on the channel where calls are made."""
    if call['recipient'] != 'functions.get_current_weather':
        content = {'error': f'there is no function {call["recipient"]}'}
    else:
        try:
            content = get_current_weather(**json.loads(call['content']))
        except (TypeError, ValueError) as error:  # models make mistakes: tell them, they often do better next time
            content = {'error': str(error)}
    print(f'{call["recipient"]}({call["content"]}) -> {json.dumps(content)}')
    return {'role': 'tool', 'name': call['recipient'], 'recipient': 'assistant', 'channel': 'commentary', 'content': json.dumps(content)}


def main():
    parser = argparse.ArgumentParser(description='Let a model on an Althing server call a function.')
    parser.add_argument('--endpoint', default='tcp://127.0.0.1:4550')
    parser.add_argument('--effort', choices=['low', 'medium', 'high'], default='low')
    parser.add_argument('prompt', nargs='*', default=['Weather in Liverpool?'])
    options = parser.parse_args()

    session = Session(options.endpoint, 'althing-tool.py/0.1')
    conversation = [{'role': 'user', 'content': ' '.join(options.prompt)}]
    for turn in range(ROUNDS_MAX):
        session.submit(f'turn-{turn}', conversation, tools=[WEATHER], reasoning_effort=options.effort, sampling={'temperature': 0})
        answer, _ = collect(session.answer(f'turn-{turn}'))
        conversation += answer
        calls = [message for message in answer if message.get('recipient', '').startswith('functions.')]
        if not calls:
            print(''.join(message['content'] for message in answer if message.get('channel') == 'final'))
            return
        conversation += [tool_answer(call) for call in calls]
    sys.exit(f'tool.py: the model still calls functions after {ROUNDS_MAX} rounds')


if __name__ == '__main__':
    try:
        main()
    except ServerError as error:
        sys.exit(f'tool.py: {error}')
    except KeyboardInterrupt:
        sys.exit(130)
