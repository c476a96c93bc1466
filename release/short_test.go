//go:build !long

package main

// pluginPlatforms are those that the tests have the plugin made for: one of each system, since each takes minutes where nothing
// has been built before. With the tag long, all.
var pluginPlatforms = []string{"darwin/arm64", "linux/amd64", "windows/amd64"}
