//go:build long

package main

// made are the platforms that the tests have the plugin made for.
var made = plugins
