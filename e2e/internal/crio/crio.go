// Package crio runs an unmodified CRI-O with conmon and runc for a test, and talks CRI to it. It runs on a machine of package
// machine, at the usual paths, and leaves nothing behind there. It finds networks and plugins where it looks for them by
// itself: /etc/cni/net.d and /opt/cni/bin.
package crio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/meshcni/meshcni/e2e/internal/daemon"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

const (
	version = "v1.34.0" // as .ci/crio builds it

	// Socket is where CRI-O serves the CRI.
	Socket  = "/run/crio/crio.sock"
	root    = "/var/lib/containers/storage"
	runRoot = "/run/containers/storage"

	// CRI-O's defaults. It watches both.
	confDir = "/etc/cni/net.d"
	binDir  = "/opt/cni/bin"
)

// What is built, not the distribution's: its runc knows no user namespaces for pods, its plugins no CNI 1.1.
var (
	program = proctest.Cache("bin", "crio-"+version)
	pinns   = proctest.Cache("bin", "pinns-"+version)
	runc    = proctest.Cache("runtime-newest", "bin", "runc")
	// Plugins is the directory of the reference plugins.
	Plugins = proctest.Cache("runtime-newest", "cni")
)

// Need are the programs.
var Need = netnstest.Need{Name: "CRI-O with its conmon, runc, skopeo and the reference CNI plugins (run .ci/crio)", Check: func() error {
	var errs []error
	for _, name := range []string{program, pinns, runc, filepath.Join(Plugins, "ptp"), "conmon", "skopeo"} {
		_, err := exec.LookPath(name)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}}

// Memory are the directories for [machine.Options.Memory].
func Memory() []string { return []string{filepath.Dir(root)} }

// Options are what tests choose.
type Options struct {
	// Pause is the image of the sandboxes' own container; Images must have it.
	Pause string
	// LogLevel is CRI-O's; "" is info, which includes what it asks the network plugins for.
	LogLevel string
	// Images are imported.
	Images []Image
}

// Image is an image of an archive (docker-archive).
type Image struct {
	// Archive is the path of the archive, and Name the image's name there, which it keeps.
	Archive, Name string
	// As are more names for it.
	As []string
}

// Runtime is a running CRI-O.
type Runtime struct {
	*daemon.Daemon

	barriers int // that Networks has made
}

// Start imports the images, starts CRI-O and waits until it answers. The caller stops it.
func Start(o Options) (*Runtime, error) {
	conf := filepath.Join(machine.Dir, "crio.conf.d")
	if err := os.Mkdir(conf, 0o755); err != nil {
		return nil, err
	}
	policy := filepath.Join(machine.Dir, "policy.json")
	for path, text := range map[string]string{
		policy:                                 `{"default": [{"type": "insecureAcceptAnything"}]}`,
		filepath.Join(conf, "10-meshcni.conf"): settings(o, policy),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	for _, image := range o.Images {
		for _, name := range append([]string{image.Name}, image.As...) {
			to := fmt.Sprintf("containers-storage:[overlay@%s+%s]%s", root, runRoot, name)
			out, err := exec.Command("skopeo", "--policy", policy, "copy", "--quiet", "docker-archive:"+image.Archive+":"+image.Name, to).CombinedOutput()
			if err != nil {
				return nil, fmt.Errorf("import image %s: %w\n%s", name, err, out)
			}
		}
	}
	d, err := daemon.New(daemon.Command{
		Name: "crio", Socket: Socket, Env: []string{"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin"},
		Program: program, Args: []string{"--config", os.DevNull, "--config-dir", conf},
	})
	if err != nil {
		return nil, err
	}
	r := &Runtime{Daemon: d}
	return r, r.Boot()
}

// Boot starts CRI-O, again after [daemon.Daemon.Kill], and waits until it has asked its network for its state.
func (r *Runtime) Boot() error {
	if err := r.Daemon.Boot(); err != nil {
		return err
	}
	// It asks for the first time half a second after its start, and answers this until then (internal/config/cnimgr).
	return proctest.Poll(5*time.Minute, func() error {
		err := r.NetworkReady(context.Background())
		if err != nil && strings.Contains(err.Error(), "plugin status uninitialized") {
			return err
		}
		return nil
	})
}

// found is what CRI-O logs of each network that it loads, the one that pods get first.
var found = regexp.MustCompile(`msg="Found CNI network [^ "]* \(type=[^ )]*\) at ([^ "]*)`)

// Networks is the text of the network configuration that pods get, or of one that was written since. CRI-O tells of no more
// than its file, in its log. So this makes a file in the directory of plugins, which CRI-O watches too, and waits until CRI-O
// has read the networks anew because of it.
func (r *Runtime) Networks(ctx context.Context) (string, error) {
	texts := map[string]string{}
	paths, err := filepath.Glob(confDir + "/*")
	if err != nil {
		return "", err
	}
	for _, path := range paths {
		text, _ := os.ReadFile(path)
		texts[path] = string(text)
	}
	r.barriers++
	barrier := filepath.Join(binDir, fmt.Sprintf(".barrier-%d", r.barriers))
	if err := os.WriteFile(barrier, nil, 0o600); err != nil {
		return "", err
	}
	defer func() { _ = os.Remove(barrier) }()
	var path string
	err = proctest.Poll(5*time.Minute, func() error {
		_, after, _ := strings.Cut(r.Log(), barrier)
		list, _, read := strings.Cut(after, `msg="Updated default CNI network name`)
		if !read {
			return errors.New("CRI-O has not read the networks anew")
		}
		if first := found.FindStringSubmatch(list); first != nil {
			path = first[1]
		}
		return ctx.Err()
	})
	return texts[path], err
}

// settings is a drop-in for the configuration file. What it does not name is CRI-O's default.
func settings(o Options, policy string) string {
	if o.LogLevel == "" {
		o.LogLevel = "info"
	}
	// An unclean shutdown would have CRI-O examine its storage, and perhaps empty it. Containers run in control groups of
	// ours, without systemd.
	const format = `[crio]
root = "` + root + `"
runroot = "` + runRoot + `"
storage_driver = "overlay"
clean_shutdown_file = ""
[crio.api]
listen = "` + Socket + `"
[crio.runtime]
log_level = "%[1]s"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "%[2]s"
default_runtime = "runc"
hooks_dir = []
irqbalance_config_file = ""
irqbalance_config_restore_file = "disable"
[crio.runtime.runtimes.runc]
runtime_path = "%[3]s"
runtime_root = "/run/runc"
monitor_cgroup = "pod"
[crio.image]
signature_policy = "%[4]s"
pause_image = "%[5]s"
pause_command = ""
[crio.nri]
enable_nri = true
`
	return fmt.Sprintf(format, o.LogLevel, pinns, runc, policy, o.Pause)
}
