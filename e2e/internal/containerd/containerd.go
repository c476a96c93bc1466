// Package containerd runs an unmodified containerd with runc for a test, and talks CRI to it. It runs on a machine of
// package machine, at the usual paths, and leaves nothing behind there.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/meshcni/meshcni/e2e/internal/daemon"
	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/testing/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// The usual paths.
const (
	Socket = "/run/containerd/containerd.sock"
	Root   = "/var/lib/containerd"
	State  = "/run/containerd"

	CNIBinDir  = "/opt/cni/bin"
	CNIConfDir = "/etc/cni/net.d"
	CNICache   = "/var/lib/cni" // libcni's
)

// newest is a directory of the newest containerd and reference plugins, which setup.sh builds, if the environment asks for
// them (MESHCNI_E2E_RUNTIME=newest), or otherwise the distribution's.
func newest(dir, otherwise string) string {
	if os.Getenv("MESHCNI_E2E_RUNTIME") == "newest" {
		return proctest.Cache("runtime-newest", dir)
	}
	return otherwise
}

// Plugins is the directory of the reference plugins, and binDir that of containerd's programs.
var (
	Plugins = newest("cni", "/usr/lib/cni")
	binDir  = newest("bin", "/usr/bin")
)

// NRI reports whether this containerd has a hook at its default path, without being asked for.
func NRI() bool { return os.Getenv("MESHCNI_E2E_RUNTIME") == "newest" }

// Need are the programs.
var Need = netnstest.Need{Name: "containerd, runc and the reference CNI plugins (run e2e/setup.sh)", Check: func() error {
	_, errRunc := exec.LookPath("runc")
	_, errPlugins := os.Stat(filepath.Join(Plugins, "ptp"))
	errs := []error{errRunc, errPlugins}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		_, err := exec.LookPath(filepath.Join(binDir, name))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}}

// Dirs are the directories for [machine.Options.Empty] and Memory.
func Dirs() (empty, memory []string) {
	return []string{CNIBinDir, CNIConfDir, CNICache, State}, []string{Root}
}

// Options are what tests choose.
type Options struct {
	// Pause is the image of the sandboxes' own container; one of Images must have it.
	Pause string
	// LogLevel is containerd's; "" is debug, which includes the calls of plugins.
	LogLevel string
	// Images are archives to import.
	Images []string
	// Metrics is the address and port where containerd serves metrics; "" is nowhere.
	Metrics string
}

// Runtime is a running containerd.
type Runtime struct {
	*daemon.Daemon

	o       Options
	version string // such as 1.6.20~ds1
}

// Start starts containerd, waits until it answers and imports the images. The caller stops it.
func Start(o Options) (*Runtime, error) {
	if o.LogLevel == "" {
		o.LogLevel = "debug"
	}
	program, config := filepath.Join(binDir, "containerd"), filepath.Join(machine.Dir, "containerd.toml")
	d, err := daemon.New(daemon.Command{
		Name: "containerd", Socket: Socket, Env: []string{"PATH=" + binDir + ":" + os.Getenv("PATH") + ":/usr/sbin:/sbin"},
		Program: program, Args: []string{"--config", config},
	})
	if err != nil {
		return nil, err
	}
	r := &Runtime{Daemon: d, o: o}
	out, err := exec.Command(program, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("version of containerd: %w", err)
	}
	if fields := strings.Fields(string(out)); len(fields) > 2 {
		r.version = strings.TrimPrefix(fields[2], "v")
	}
	if err := os.WriteFile(config, []byte(r.settings()), 0o600); err != nil {
		return nil, err
	}
	if err := r.Boot(); err != nil {
		return nil, err
	}
	for _, path := range o.Images {
		if err := importImages(path); err != nil {
			r.Kill()
			return nil, err
		}
	}
	return r, nil
}

// Networks are the network configurations that containerd has loaded. It follows its directory with a delay.
func (r *Runtime) Networks(ctx context.Context) (string, error) {
	status, err := r.Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return "", err
	}
	return status.Info["cniconfig"], nil
}

// importImages makes the images of an archive (docker-archive or OCI layout) known to the CRI.
func importImages(archive string) error {
	_, err := Ctr("images", "import", archive)
	return err
}

// Ctr runs containerd's own client on the CRI's images and containers, and returns its output.
func Ctr(args ...string) (string, error) { return ctr(nil, args...) }

// ctr does it by way of another program's command, such as nsenter's.
func ctr(by []string, args ...string) (string, error) {
	command := slices.Concat(by, []string{filepath.Join(binDir, "ctr"), "--address", Socket, "--namespace", "k8s.io"}, args)
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ctr %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// settings is the configuration file. containerd 1 and 2 have different names for the same settings.
func (r *Runtime) settings() string {
	const common = `root = "` + Root + `"
state = "` + State + `"
[grpc]
  address = "` + Socket + `"
[debug]
  level = "%[2]s"
[metrics]
  address = "%[3]s"
`
	// Many machines have no control groups for huge pages. Lowering an out-of-memory score takes a right that a container
	// does not have.
	const v1 = "version = 2\n" + common + `[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[1]s"
  disable_hugetlb_controller = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + CNIBinDir + `"
    conf_dir = "` + CNIConfDir + `"
`
	const v2 = "version = 3\n" + common + `[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "%[1]s"
[plugins."io.containerd.cri.v1.runtime"]
  disable_hugetlb_controller = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["` + CNIBinDir + `"]
    conf_dir = "` + CNIConfDir + `"
`
	format := v2
	if strings.HasPrefix(r.version, "1.") {
		format = v1
	}
	return fmt.Sprintf(format, r.o.Pause, r.o.LogLevel, r.o.Metrics)
}
