// Package repotest checks the repository's shape: what may import what and why, that each package says what it is for, that
// no test skips in silence or waits for the clock. It has tests only.
package repotest
