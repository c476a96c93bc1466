package podnetns

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// groups are the paths of a process's control groups by hierarchy, which is the number and the controllers in a line of
// cgroups(7): "12:pids" or "0:".
type groups map[string]string

func parseGroups(text []byte) groups {
	g := groups{}
	for line := range strings.Lines(string(text)) {
		number, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, dir, _ := strings.Cut(rest, ":")
		g[number+":"+controllers] = dir
	}
	return g
}

// nodeGroups returns, by hierarchy, the group of the pod in which the node itself runs, if it does, as in a cluster inside a
// pod. Every process of the node has that part in its path, so it means nothing. Process 1 tells, which no container can
// move.
func nodeGroups(proc fs.FS) (groups, error) {
	text, err := fs.ReadFile(proc, "1/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // hidden, as with hidepid
	}
	if err != nil {
		return nil, fmt.Errorf("read control groups of process 1: %w", err)
	}
	node := groups{}
	for hierarchy, dir := range parseGroups(text) {
		parts := strings.Split(dir, "/")
		for i := len(parts); i > 0; i-- {
			if podPart(parts[i-1]) != "" {
				node[hierarchy] = strings.Join(parts[:i], "/") + "/"
				break
			}
		}
	}
	return node, nil
}

// podOf returns the UID of the pod that a process's control groups name, or "". In each hierarchy the outermost pod's part
// counts, which the kubelet made; a container may create groups of any name below. It may also create groups in a
// hierarchy that the kubelet does not manage, so hierarchies that name different pods name none.
func podOf(text []byte, node groups) (uid string) {
	for hierarchy, dir := range parseGroups(text) {
		if above := node[hierarchy]; above != "" {
			dir = strings.TrimPrefix(dir, above)
		}
		for part := range strings.SplitSeq(dir, "/") {
			found := podPart(part)
			if found == "" {
				continue
			}
			if uid != "" && found != uid {
				return ""
			}
			uid = found
			break
		}
	}
	return uid
}

// podPart returns the UID if a part of a path is a pod's directory, and otherwise "": "pod<UID>" with the cgroupfs driver,
// "…kubepods…-pod<UID with underscores>.slice" with systemd. A runtime that is configured for another driver than the
// kubelet appends a colon and more. In a control group namespace, paths begin with "/.." and still contain the pod's part.
func podPart(part string) string {
	if uid, ok := strings.CutPrefix(part, "pod"); ok && ValidUID(uid) {
		return uid
	}
	part, _, _ = strings.Cut(part, ":")
	slice, ok := strings.CutSuffix(part, ".slice")
	if !ok {
		return ""
	}
	at := strings.LastIndex(slice, "pod")
	if at < 0 || at > 0 && (slice[at-1] != '-' || !strings.Contains(slice[:at], "kubepods")) {
		return ""
	}
	if uid := strings.ReplaceAll(slice[at+len("pod"):], "_", "-"); ValidUID(uid) {
		return uid
	}
	return ""
}
