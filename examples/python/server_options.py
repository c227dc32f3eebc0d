"""How every example finds its server and, where the server has keys, is let in."""
from althing_client import CurveKeys


def add_server_options(parser):
    parser.add_argument('--endpoint', default='tcp://127.0.0.1:4550')
    parser.add_argument('--server-key', default='', help="the server's .pub file, where it wants keys")
    parser.add_argument('--key', default='', help='your own .key file (althing keys new)')


def curve_of(options):
    """For Client(curve=...). None: no keys."""
    return CurveKeys.load(options.server_key, options.key) if options.server_key or options.key else None
