//go:build !long

package main

// made are the platforms that the tests have the plugin made for: one of each system, since each takes minutes where nothing has been
// built before. e2e/release makes all.
var made = []platform{{"darwin", "amd64"}, {"linux", "amd64"}, {"windows", "amd64"}}
