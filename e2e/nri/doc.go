// Package nri tests the client of the container runtime's hook with the runtimes' own half of it, on a real socket. It has tests only.
package nri
