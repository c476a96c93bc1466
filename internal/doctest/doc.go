// Package doctest holds the documentation to what the tree does. It finds the commands that a Markdown file shows, so
// that a test can run them and compare what they print with what the file says they print.
//
// A command is a fenced block whose language is sh. The HTML comment above it, which no reader sees, says who runs it:
//
//	<!-- run: local -->            no root, no cluster: the tests of this package
//	<!-- run: root -->             root on Linux: the tests of this package
//	<!-- run: cluster -->          the one-node cluster of e2e/cluster, in the order of the file
//	<!-- run: local, exit 1 -->    the same, and the block must end with this code
//	<!-- not run: why -->          nobody, for the reason given
//
// A block of the language text under an `<!-- expect -->` holds lines that the command before it must print, in this
// order; other lines may stand between them, and … in a line stands for anything. With `<!-- expect: all -->` nothing
// else may be printed.
//
// Each block is a program of its own for bash -euo pipefail, started in the root of the repository: nothing but files
// is carried from one block to the next.
package doctest
