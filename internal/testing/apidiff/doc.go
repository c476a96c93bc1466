// Package apidiff holds the tests of .ci/apidiff, which compares the public packages with those of the last release.
// The script runs a tool of its own module, so that its dependencies are none of ours.
package apidiff
