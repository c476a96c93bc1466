// Package demo shows the plugin and the agent at work on this machine, without a cluster: see `make demo`. It is a test, so it also runs
// with the others.
package demo
