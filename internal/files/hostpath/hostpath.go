// Package hostpath knows where the manifests mount directories of the host.
package hostpath

import "strings"

// prefix begins the paths at which the manifests mount directories of the host.
const prefix = "/host/"

// OnHost returns a path of this process as the host has it: without /host before it.
func OnHost(path string) string {
	if rest, ok := strings.CutPrefix(path, prefix); ok {
		return "/" + rest
	}
	return path
}
