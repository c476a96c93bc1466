package podnetns

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// groups are the paths of a process's control groups, by hierarchy: the number and
// the controllers of a line of cgroups(7), "12:pids:" or "0::".
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

// nodeGroups returns, for each hierarchy, the group of a pod in which the node
// itself runs, as that of a cluster inside a pod does. Such a part is in the path of
// every process of the node, so it tells nothing. It is told from process 1, which
// no container can move. On other nodes it is empty.
func nodeGroups(proc fs.FS) (groups, error) {
	text, err := fs.ReadFile(proc, "1/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // not to be seen, as with hidepid
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

// podOf returns the UID of the pod that a process is in, by its control groups;
// empty when it is in none. In each hierarchy the outermost pod's part decides, which
// the kubelet has made: what is below belongs to that pod, whatever its name. A
// container may also be able to make groups in a hierarchy that the kubelet does not
// manage. So hierarchies that name different pods name none: nothing is
// done to a pod on the word of another.
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

// podPart returns the UID when a part of a path is a pod's directory: "pod<UID>"
// with the cgroupfs driver, "…kubepods…-pod<UID with underscores>.slice" with systemd.
// A runtime that is set up for the other driver than the kubelet makes one
// part of the slice, a colon and its own words. A reader in a control group
// namespace of its own sees paths that begin with "/..", and the pod's part all the same.
func podPart(part string) string {
	if uid, ok := strings.CutPrefix(part, "pod"); ok && validUID(uid) {
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
	if uid := strings.ReplaceAll(slice[at+len("pod"):], "_", "-"); validUID(uid) {
		return uid
	}
	return ""
}
