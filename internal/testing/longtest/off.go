//go:build !long

package longtest

// On is whether the build tag long is set.
const On = false
