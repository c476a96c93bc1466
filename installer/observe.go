//go:build linux

package installer

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/files/diskfile"
	"github.com/meshcni/meshcni/internal/files/hostpath"
	"github.com/meshcni/meshcni/internal/node/hookfile"
)

// observed is the state of the node from which a plan is made, and what is remembered of it.
type observed struct {
	// conf is the configuration directory; nil with confErr.
	conf    *snapshot
	confErr error
	// sourceErr is the cause when there is no binary to install.
	sourceErr error
	// supports are the versions of the CNI specification that the binary to install reports; nil if it reports none.
	supports []string
	binDirs  []BinDir
	// credentials are valid without credentialsErr.
	credentials    credentials
	credentialsErr error
	// kubeconfig is the content of that file; nil if there is none.
	kubeconfig     []byte
	kubeconfigMode fs.FileMode
	// stale are temporary files of killed processes.
	stale []string
	// types are those on record under which the plugin has been installed.
	types []string

	remembered

	// hook lists our files in the runtime's directory of plugins of its hook.
	hook hooked

	// For an uninstall only. attachments are those in libcni's cache made with our plugin, naming those made with another
	// plugin that has our kubeconfig. left are files that the plugin leaves in the run directory,
	// past those by which an agent remembers the node.
	attachments, naming []string
	attachmentsErr      error
	left, past          []string
}

// BinDir is one of the runtime's directories of plugins.
type BinDir struct {
	// Path is its path in this process.
	Path string
	// Err is the cause of a read that failed. Then nothing else is known of it.
	Err error
	// Usable: a program that can be run has the plugin's name. Current: it is the one that the agent installs.
	Usable, Current bool

	programs map[string]program
}

// Has reports whether the directory has a file of that name.
func (b BinDir) Has(name string) bool {
	_, ok := b.programs[name]
	return ok
}

// observer looks at the node. It caches the digest of a binary until its inode changes, so that looking again costs only a
// few calls of stat.
type observer struct {
	digests  map[string]digest
	supports map[[sha256.Size]byte][]string
}

type digest struct {
	stat unix.Stat_t
	sum  [sha256.Size]byte
}

func newObserver() *observer {
	return &observer{digests: map[string]digest{}, supports: map[[sha256.Size]byte][]string{}}
}

func (o *observer) look(c Config) observed {
	var seen observed
	places := append([]string{c.CNIConfDir, c.RunDir}, c.CNIBinDirs...)
	var err error
	if seen.conf, err = takeSnapshot(c.CNIConfDir); err != nil {
		seen.confErr = explain(err, c.CNIConfDir)
	} else {
		places = append(places, seen.conf.links...)
	}
	if c.HookDir != "" {
		places = append(places, hookfile.In(c.HookDir, c.Identity.WithDefaults().Plugin).Dir)
	}
	slices.Sort(places)
	for _, dir := range slices.Compact(places) {
		seen.stale = append(seen.stale, diskfile.Stale(dir)...)
	}
	source, _, err := o.digest(c.source())
	if err == nil {
		seen.supports = o.versions(c.source(), source)
	}
	seen.sourceErr = explain(err, c.source())
	for _, dir := range c.CNIBinDirs {
		seen.binDirs = append(seen.binDirs, o.binDir(dir, c.pluginType(), source))
	}
	seen.hook = o.hook(c, source)
	if c.KubeconfigName != "" {
		seen.credentials, seen.credentialsErr = readCredentials(c.ServiceAccountDir)
	}
	if info, err := os.Lstat(c.kubeconfig()); err == nil {
		seen.kubeconfigMode = info.Mode()
		data, _ := os.ReadFile(c.kubeconfig())
		seen.kubeconfig = append([]byte{}, data...)
	}
	if data, err := os.ReadFile(c.record()); err == nil {
		seen.types = recorded(data)
	}
	return seen
}

// lookForInstall is look for an install that gets no token for the plugin: one that an agent has left stays while it is good.
func (o *observer) lookForInstall(c Config) observed {
	seen := o.look(c)
	if kept, ok := keptToken(seen.kubeconfig, time.Now()); ok {
		seen.credentials.token = kept
	}
	past := recall(c)
	seen.taken, seen.whole = c.OwnFile == SwitchAuto && past.Taken, past.Whole
	return seen
}

// lookForTakeBack is look with what is needed to take back what captures pods.
func (o *observer) lookForTakeBack(c Config) observed {
	seen := o.look(c)
	ours := ours{
		types: typesOf(c.pluginType(), seen), kubeconfig: hostpath.OnHost(c.kubeconfig()),
		agentNamespace: c.agentNamespace(), agentPrefix: c.Identity.AgentPrefix(),
	}
	seen.whole = recall(c).Whole
	seen.attachments, seen.naming, seen.attachmentsErr = readCache(os.DirFS(c.CNICacheDir), ours)
	kept := diskfile.ReservePaths(c.CNIConfDir, c.Identity.WithDefaults().Name)
	for _, dir := range append([]string{c.CNIConfDir}, c.CNIBinDirs...) { // agents of before kept copies
		kept = append(kept, filepath.Join(dir, c.historyName()))
	}
	seen.past = there(kept...)
	seen.left = there(c.record())
	return seen
}

// lookForUninstall is look with what only an uninstall needs.
func (o *observer) lookForUninstall(c Config) observed {
	seen := o.lookForTakeBack(c)
	for _, name := range []string{"settings.json", "network.json", "status.json"} { // the last is there if the agent was killed
		seen.past = append(seen.past, there(filepath.Join(c.RunDir, name))...)
	}
	for _, pattern := range []string{"plugin.log*", "attachments/*", "attachments"} {
		paths, _ := filepath.Glob(filepath.Join(c.RunDir, pattern)) // the patterns are well-formed
		seen.left = append(seen.left, paths...)
	}
	return seen
}

// there returns those of the paths at which something is.
func there(paths ...string) []string {
	return slices.DeleteFunc(paths, func(path string) bool {
		_, err := os.Lstat(path)
		return err != nil
	})
}

func (o *observer) binDir(dir, typ string, source [sha256.Size]byte) BinDir {
	entries, err := os.ReadDir(dir)
	b := BinDir{Path: dir, Err: explain(err, dir), programs: map[string]program{}}
	in := sync.OnceValue(func() mounted { return mountOf(dir) })
	for _, e := range entries {
		b.programs[e.Name()] = programOf(in, dir, e)
	}
	if b.Has(typ) {
		sum, mode, err := o.digest(filepath.Join(dir, typ))
		b.Usable = err == nil && mode&0o111 != 0 && sum != sha256.Sum256(nil)
		b.Current = b.Usable && sum == source
	}
	return b
}

func (o *observer) digest(path string) (sum [sha256.Size]byte, mode uint32, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return sum, 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	st.Atim = unix.Timespec{} // running it changes that
	if known, ok := o.digests[path]; ok && known.stat == st {
		return known.sum, st.Mode, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return sum, 0, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return sum, 0, err
	}
	sum = [sha256.Size]byte(h.Sum(nil))
	o.digests[path] = digest{st, sum}
	return sum, st.Mode, nil
}

// versions asks a binary, once for each content, which versions of the specification it supports.
func (o *observer) versions(path string, sum [sha256.Size]byte) []string {
	if known, ok := o.supports[sum]; ok {
		return known
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"1.0.0"}`)
	cmd.WaitDelay = time.Second
	out, _ := cmd.Output() // fails for another architecture, or for what is no plugin
	var answer struct{ SupportedVersions []string }
	_ = json.Unmarshal(out, &answer)
	o.supports[sum] = answer.SupportedVersions
	return answer.SupportedVersions
}
