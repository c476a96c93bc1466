// Package nri is the plugin's half of the container runtime's own hook: the runtime tells of each pod before its first container, and waits for
// an answer.
//
// The protocol is NRI's, of which this is what a plugin needs that adjusts nothing. Its makers' library for plugins would bring nine
// modules, among them a runtime for WebAssembly, and half a megabyte; and it bounds less of what it reads.
package nri
