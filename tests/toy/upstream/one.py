import argparse

parser = argparse.ArgumentParser()
parser.add_argument('--size', default=1, type=int)


def main():
    args = parser.parse_args()
    print(args.size)
    print('end')


if __name__ == '__main__':
    main()
