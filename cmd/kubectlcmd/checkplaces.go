package kubectlcmd

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/nodeagent/agentapi"
	"github.com/meshcni/meshcni/plugin/netconf"
)

// mounted is a directory of an agent's container.
type mounted struct {
	at string
	// host is the node's directory that is mounted there. Empty: it is another kind of volume.
	host     string
	readOnly bool
}

// mountsOf returns what is mounted into a container; nil: into none.
func mountsOf(pod *corev1.PodSpec, c *corev1.Container) (all []mounted) {
	if c == nil {
		return nil
	}
	for _, m := range c.VolumeMounts {
		found := mounted{at: path.Clean(m.MountPath), readOnly: m.ReadOnly}
		for _, v := range pod.Volumes {
			if v.Name == m.Name && v.HostPath != nil && m.SubPathExpr == "" {
				found.host = path.Join(v.HostPath.Path, m.SubPath)
			}
		}
		all = append(all, found)
	}
	return all
}

// behind returns the node's directory that the agent has at a path, and whether it is mounted read-only.
func behind(mounts []mounted, at string) (host string, readOnly bool) {
	longest := -1
	for _, m := range mounts {
		rest, below := strings.CutPrefix(at, strings.TrimSuffix(m.at, "/")+"/")
		if at != m.at && !below || len(m.at) <= longest {
			continue
		}
		if at == m.at {
			rest = ""
		}
		longest, host, readOnly = len(m.at), "", m.readOnly
		if m.host != "" {
			host = path.Join(m.host, rest)
		}
	}
	return host, readOnly
}

// places adds what is wrong with the directories of a node that its agent works in.
func (f *findings) places(where string, mounts []mounted, n agentapi.Node) {
	hosts := map[string][]string{} // the node's directories, by flag
	for _, p := range n.Places {
		level := levelWarning // what is only read is missed by an uninstall, and by whoever looks for pods
		if p.Writes {
			level = levelError
		}
		host, readOnly := behind(mounts, path.Clean(p.Path))
		hosts[p.Flag] = append(hosts[p.Flag], host)
		flag := "--" + p.Flag + " " + p.Path
		switch {
		case host == "":
			f.add(codePlaceNotMounted, level, where, flag+": the agent's pod mounts no directory of the node there")
		case p.Writes && readOnly:
			f.add(codePlaceUnusable, level, where, flag+": the agent's pod mounts it read-only, and the agent has to write to it")
		case p.Error != "":
			f.add(codePlaceUnusable, level, where, flag+": "+p.Error)
		case host != path.Clean(p.Host):
			f.add(codePlaceDiffers, level, where, fmt.Sprintf("%s: the agent takes it for the node's %s, and its pod mounts the node's %s there", flag, p.Host, host))
		}
	}
	f.entryPlaces(where, n, hosts)
	f.binDirs(where, n.BinDirs)
}

// entryPlaces adds where the plugin's entry, by which the plugin finds the agent, names another directory than the agent has.
func (f *findings) entryPlaces(where string, n agentapi.Node, hosts map[string][]string) {
	if len(n.Places) == 0 || len(n.Installed.Config) == 0 {
		return
	}
	c, _, err := netconf.Parse(n.Installed.Config, f.product)
	if err != nil {
		return // which is a finding of its own
	}
	differs := func(key, says, flag string) {
		has := slices.DeleteFunc(slices.Clone(hosts[flag]), func(dir string) bool { return dir == "" })
		if says != "" && len(has) > 0 && !slices.Contains(has, path.Clean(says)) {
			f.add(codePlaceDiffers, levelError, where, fmt.Sprintf("the plugin's entry has %s %s, and the agent's --%s is the node's %s", key, says, flag, strings.Join(has, ", ")))
		}
	}
	differs("run_dir", c.RunDir, "run-dir")
	differs("cni_bin_dir", c.Kubernetes.CNIBinDir, "cni-bin-dir")
}

// binDirs adds what is wrong with the programs in the runtime's directories.
func (f *findings) binDirs(where string, dirs []agentapi.BinDir) {
	var lacks []string // what no directory has
	read := 0
	for _, b := range dirs {
		switch {
		case b.Error != "":
			f.add(codePlaceUnusable, levelUnknown, where, "--cni-bin-dir "+b.Path+" cannot be read, so nothing is known of the programs there: "+b.Error)
			continue
		case b.Plugin == agentapi.Missing:
			f.add(codeProgramMissing, levelError, where, b.Path+" has no program of the plugin that can be run: where the runtime looks there, no pod starts")
		case b.Plugin == agentapi.Another:
			f.add(codeProgramDiffers, levelWarning, where, "the plugin's program in "+b.Path+" is not the one that the agent installs")
		}
		if read++; read == 1 {
			lacks = b.Lacks
		} else {
			lacks = slices.DeleteFunc(slices.Clone(lacks), func(t string) bool { return !slices.Contains(b.Lacks, t) })
		}
	}
	if len(lacks) > 0 && read == len(dirs) {
		f.add(codePluginsElsewhere, levelWarning, where, "the network's list names "+strings.Join(lacks, ", ")+", and no directory of --cni-bin-dir has that: either no pod starts, or the runtime looks for plugins elsewhere")
	}
}
