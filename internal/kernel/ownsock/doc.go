// Package ownsock opens sockets that belong to any user and group, as rules that match owners see them, and asks where a
// connection was to go.
package ownsock
