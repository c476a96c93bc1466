// Package runtimeclass reads names of RuntimeClasses and of the runtimes' handlers.
package runtimeclass

import (
	"slices"
	"strings"
)

// Is reports whether the name is one of the classes, or has one of them as a word between "-" and ".". An empty name is none.
func Is(name string, classes []string) bool {
	words := strings.FieldsFunc(name, func(c rune) bool { return c == '-' || c == '.' })
	return slices.ContainsFunc(append(words, name), func(word string) bool { return word != "" && slices.Contains(classes, word) })
}
