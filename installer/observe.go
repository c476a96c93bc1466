//go:build linux

package installer

import (
	"bytes"
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
	"time"

	"github.com/meshcni/meshcni/installer/internal/diskfile"
	"golang.org/x/sys/unix"
)

// Observed is what is on the node: the values a plan is made from.
type Observed struct {
	// Net is the configuration directory, or nil with NetErr.
	Net    fs.FS
	NetErr error
	// SourceErr says why there is no binary to install, if so.
	SourceErr error
	// Supports are the versions of the CNI specification that the binary to install says it speaks; nil when it does not say.
	Supports []string
	// BinDirs are the runtime's binary directories, in Config's order.
	BinDirs []BinDir
	// Credentials, or CredentialsErr.
	Credentials    Credentials
	CredentialsErr error
	// Kubeconfig is what is there, nil if nothing is.
	Kubeconfig     []byte
	KubeconfigMode fs.FileMode
	// Stale are temporary files of killed runs.
	Stale []string
	// Types are those that the plugin has been installed as, by the record in the run directory; the default is in no record.
	Types []string
	// Attachments are those in libcni's cache made with our plugin, Naming those made with another one that has our
	// kubeconfig; or AttachmentsErr. Read for an uninstall only.
	Attachments, Naming []string
	AttachmentsErr      error
	// Left are the files that the plugin, and the record of its types, leave in the run directory. Looked for for an
	// uninstall only.
	Left []string
}

// BinDir is one binary directory.
type BinDir struct {
	Path string
	// Err says why it cannot be used, such as fs.ErrNotExist.
	Err error
	// Present: something of our plugin's name is there. Usable: it is a program, if perhaps of another version. Current: it is
	// the one to install.
	Present, Usable, Current bool
	// Names are the files there.
	Names []string
}

// observer looks at the node. It remembers the digests of binaries as long as their inodes do not change, so that looking
// again costs no more than a few stats.
type observer struct {
	digests  map[string]digest
	supports map[[sha256.Size]byte][]string
}

type digest struct {
	stat statKey
	sum  [sha256.Size]byte
}

type statKey struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
	mode         uint32
}

func (o *observer) look(c Config, uninstall bool) Observed {
	var seen Observed
	name := pluginTypeOf(c)
	if snap, err := TakeSnapshot(c.CNIConfDir); err != nil {
		seen.NetErr = err
	} else {
		seen.Net = snap
	}
	source, _, err := o.digest(filepath.Join(c.BinSourceDir, PluginName))
	seen.SourceErr = err
	if err == nil {
		seen.Supports = o.versions(filepath.Join(c.BinSourceDir, PluginName), source)
	}
	places := append([]string{c.CNIConfDir, c.RunDir}, c.CNIBinDirs...)
	for _, dir := range c.CNIBinDirs {
		b := BinDir{Path: dir}
		entries, err := os.ReadDir(dir)
		b.Err = err
		for _, e := range entries {
			b.Names = append(b.Names, e.Name())
		}
		if slices.Contains(b.Names, name) {
			sum, mode, err := o.digest(filepath.Join(dir, name))
			b.Present = true
			b.Usable = err == nil && mode&0o111 != 0 && sum != sha256.Sum256(nil)
			b.Current = b.Usable && seen.SourceErr == nil && sum == source
		}
		seen.BinDirs = append(seen.BinDirs, b)
	}
	if snap, ok := seen.Net.(*Snapshot); ok {
		places = append(places, snap.links...)
	}
	slices.Sort(places)
	for _, dir := range slices.Compact(places) {
		seen.Stale = append(seen.Stale, diskfile.Stale(dir)...)
	}
	seen.Credentials, seen.CredentialsErr = ReadCredentials(c.ServiceAccountDir)
	if info, err := os.Lstat(c.kubeconfig()); err == nil {
		seen.KubeconfigMode = info.Mode()
		seen.Kubeconfig, _ = os.ReadFile(c.kubeconfig())
		if seen.Kubeconfig == nil {
			seen.Kubeconfig = []byte{}
		}
	}
	if data, err := os.ReadFile(c.record()); err == nil {
		seen.Types = recorded(data)
	}
	if uninstall {
		cached, err := Attachments(os.DirFS(c.CNICacheDir), Ours{
			Types: (&planner{typ: name, o: seen}).types(), Kubeconfig: onHost(c.kubeconfig()),
			AgentNamespace: c.agentNamespace(), AgentPrefix: c.AgentPrefix,
		})
		seen.Attachments, seen.Naming, seen.AttachmentsErr = cached.Made, cached.Naming, err
		seen.Left = left(c)
	}
	return seen
}

// left are the files that outlive the plugin's runs: its log, what it noted of each attachment, and the record of its types.
func left(c Config) []string {
	var out []string
	for _, pattern := range []string{"plugin.log*", "attachments/*", "attachments", filepath.Base(c.record())} {
		paths, _ := filepath.Glob(filepath.Join(c.RunDir, pattern)) // the patterns are well-formed
		out = append(out, paths...)
	}
	return out
}

func pluginTypeOf(c Config) string {
	entry, err := c.Entry()
	if err != nil {
		return PluginName
	}
	return pluginType(entry)
}

func (o *observer) digest(path string) (sum [sha256.Size]byte, mode uint32, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return sum, 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	key := statKey{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim, st.Mode} //nolint:unconvert // the types differ between architectures
	if known, ok := o.digests[path]; ok && known.stat == key {
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
	if o.digests == nil {
		o.digests = map[string]digest{}
	}
	o.digests[path] = digest{key, sum}
	return sum, st.Mode, nil
}

// versions asks a binary, once for each content, which versions it speaks.
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
	out, _ := cmd.Output() // another architecture, no plugin: it does not say
	var answer struct{ SupportedVersions []string }
	_ = json.Unmarshal(out, &answer)
	if o.supports == nil {
		o.supports = map[[sha256.Size]byte][]string{}
	}
	o.supports[sum] = answer.SupportedVersions
	return answer.SupportedVersions
}

// wantKubeconfig is the kubeconfig to have, and the cause to write it (empty when it is as it should be).
func wantKubeconfig(c Config, o Observed) (data []byte, cause string) {
	data = kubeconfigFor(c, o.Credentials)
	switch {
	case o.Kubeconfig == nil:
		cause = "kubeconfig-missing"
	case !bytes.Equal(o.Kubeconfig, data):
		cause = "credentials-changed"
	case o.KubeconfigMode != 0o600:
		cause = "kubeconfig-mode"
	}
	return data, cause
}
