package podnetns

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
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

// read returns the control groups of a process; none if there is no such process.
func readGroups(proc fs.FS, process string) (groups, error) {
	text, err := fs.ReadFile(proc, process+"/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read control groups of process %s: %w", process, err)
	}
	return parseGroups(text), nil
}

// kubelet knows which control groups are the kubelet's.
type kubelet struct {
	made Made
	// node is, by hierarchy, the group of the pod in which the node itself runs, if it does, as in a cluster inside a pod. Every process
	// of the node has that part in its path, so it means nothing. Process 1 tells, which no container can move.
	node groups
	// pods is, by hierarchy, the group of all pods, by our own pod's. nil: we are in no pod.
	pods groups
	// top says of a hierarchy whether there is a group of all pods at its top.
	top map[string]bool
	// seen holds the answers of made on pods' groups.
	seen map[[2]string]error
}

// learn learns where the kubelet's groups are.
func learn(proc fs.FS, made Made) (*kubelet, error) {
	k := &kubelet{made: made, node: groups{}, top: map[string]bool{}, seen: map[[2]string]error{}}
	first, err := readGroups(proc, "1") // none: hidden, as with hidepid
	if err != nil {
		return nil, err
	}
	for hierarchy, dir := range first {
		parts := strings.Split(dir, "/")
		for i := len(parts); i > 0; i-- {
			if podPart(parts[i-1]) != "" {
				k.node[hierarchy] = strings.Join(parts[:i], "/")
				break
			}
		}
	}
	own, err := readGroups(proc, "self") // none: of another PID namespace
	if err != nil {
		return nil, err
	}
	for hierarchy, dir := range own {
		above := k.node[hierarchy]
		if all, _, uid := split(below(dir, above)); uid != "" {
			if k.pods == nil {
				k.pods = groups{}
			}
			k.pods[hierarchy] = above + all
		}
	}
	return k, nil
}

// below returns the path below a group that it is in, and otherwise the path.
func below(dir, above string) string {
	if rest, ok := strings.CutPrefix(dir, above); ok && strings.HasPrefix(rest, "/") {
		return rest
	}
	return dir
}

// owner returns the UID of the pod that a process belongs to, or "". claimed is the one that its groups name, whoever made them.
func (k *kubelet) owner(proc fs.FS, pid int) (uid, claimed string, err error) {
	text, err := fs.ReadFile(proc, strconv.Itoa(pid)+"/cgroup")
	if err != nil {
		return "", "", err
	}
	return k.podOf(parseGroups(text))
}

// podOf returns the UID of the pod that control groups name, or "". In each hierarchy the outermost pod's part counts, if it is the
// kubelet's; a container may create groups of any name below. Hierarchies that name different pods name none.
func (k *kubelet) podOf(all groups) (uid, claimed string, err error) {
	for hierarchy, dir := range all {
		above := k.node[hierarchy]
		if below(dir, above) == dir {
			above = ""
		}
		pods, pod, found := split(below(dir, above))
		if found == "" {
			continue
		}
		claimed = found
		ours, err := k.is(hierarchy, above, above+pods, above+pod)
		switch {
		case err != nil:
			return "", claimed, err
		case !ours:
			continue
		case uid != "" && found != uid:
			return "", claimed, nil
		}
		uid = found
	}
	return uid, claimed, nil
}

// is reports whether a pod's group, in that of all pods, is the kubelet's.
func (k *kubelet) is(hierarchy, above, pods, pod string) (bool, error) {
	if k.pods != nil {
		if all, managed := k.pods[hierarchy]; !managed || pods != all {
			return false, nil
		}
	} else {
		ours := slices.ContainsFunc(tops, func(top string) bool { return pods == above+top })
		if !ours && (!isPods(pods[strings.LastIndex(pods, "/")+1:]) || k.hasTop(hierarchy, above)) {
			return false, nil
		}
	}
	_, controllers, _ := strings.Cut(hierarchy, ":")
	err := k.ask(controllers, pod)
	if errors.Is(err, errTenants) {
		return false, nil
	}
	return err == nil, err
}

func (k *kubelet) ask(controllers, dir string) error {
	key := [2]string{controllers, dir}
	err, known := k.seen[key]
	if !known {
		err = k.made(controllers, dir)
		k.seen[key] = err
	}
	return err
}

// tops are the groups of all pods of a kubelet with its defaults.
var tops = []string{"/kubepods", "/kubepods.slice"}

// hasTop reports whether a hierarchy has one of them, so that no other is the kubelet's.
func (k *kubelet) hasTop(hierarchy, above string) bool {
	_, controllers, _ := strings.Cut(hierarchy, ":")
	return slices.ContainsFunc(tops, func(top string) bool { return k.ask(controllers, above+top) == nil })
}

// isPods reports whether a part of a path is the directory of all pods: "kubepods" with the cgroupfs driver; with systemd a slice whose
// name begins with that of the kubelet's root.
func isPods(part string) bool {
	return part == "kubepods" || part == "kubepods.slice" || strings.HasSuffix(part, "-kubepods.slice")
}

// isClass reports whether a part of a path is the directory of a class of service, between that of all pods and the pod's.
func isClass(part string) bool {
	part = strings.TrimSuffix(part, ".slice")
	return part == "burstable" || part == "besteffort" || strings.HasSuffix(part, "-burstable") || strings.HasSuffix(part, "-besteffort")
}

// split returns the outermost pod's group in a path, the UID in its name, and the group of all pods that it is in.
func split(dir string) (pods, pod, uid string) {
	parts := strings.Split(dir, "/")
	for i, part := range parts {
		if uid := podPart(part); uid != "" {
			all := i
			if i > 0 && isClass(parts[i-1]) {
				all--
			}
			return strings.Join(parts[:all], "/"), strings.Join(parts[:i+1], "/"), uid
		}
	}
	return "", "", ""
}

// podPart returns the UID if a part of a path is a pod's directory, and otherwise "": "pod<UID>" with the cgroupfs driver,
// "…kubepods…-pod<UID with underscores>.slice" with systemd. A runtime that is configured for another driver than the
// kubelet appends a colon and more.
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
