// Package repotest holds the repository to its own shape: which package may
// import what and why, that every package says what it is for, that no test
// skips silently. It has tests only.
package repotest
