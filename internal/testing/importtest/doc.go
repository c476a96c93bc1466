// Package importtest imports the public packages from a module outside of this repository, as users do, and holds what
// that brings to a list. It has tests only.
package importtest
