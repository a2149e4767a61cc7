def main():
    print('end')


main()
