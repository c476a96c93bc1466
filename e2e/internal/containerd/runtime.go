// Package containerd runs containerd with runc for a test, unchanged and with files
// of its own, and speaks CRI with it as a kubelet does. It is made for a machine of
// package machine, where it has the usual paths and where all that it leaves goes
// with the machine.
package containerd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/meshcni/meshcni/e2e/internal/machine"
	"github.com/meshcni/meshcni/internal/proctest"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// Where the parts are that are the same for all.
const (
	Socket = "/run/containerd/containerd.sock"
	Root   = "/var/lib/containerd"
	State  = "/run/containerd"

	// CNIBinDir and CNIConfDir are where a runtime usually looks for plugins and
	// networks; CNICache is libcni's.
	CNIBinDir  = "/opt/cni/bin"
	CNIConfDir = "/etc/cni/net.d"
	CNICache   = "/var/lib/cni"
)

// newest is where setup.sh has put containerd and the reference plugins in their
// newest versions, if the tests are to run with these and not the distribution's.
func newest(dir, otherwise string) string {
	if os.Getenv("MESHCNI_E2E_RUNTIME") == "newest" {
		return machine.Cache("runtime-newest", dir)
	}
	return otherwise
}

// Plugins is where the reference plugins are: the distribution's, or, where the
// environment has MESHCNI_E2E_RUNTIME=newest, those that setup.sh has built.
var Plugins = newest("cni", "/usr/lib/cni")

// PluginsVersion is the newest version of the CNI specification that the reference
// plugins know: the distribution's 1.0.0, newer ones 1.1.0, with which the runtime
// also asks for STATUS.
func PluginsVersion() (string, error) {
	cmd := exec.Command(filepath.Join(Plugins, "ptp"))
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader("{}")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("version of the reference plugins: %w", err)
	}
	var known struct{ SupportedVersions []string }
	if err := json.Unmarshal(out, &known); err != nil || len(known.SupportedVersions) == 0 {
		return "", fmt.Errorf("version of the reference plugins: %s", out)
	}
	return known.SupportedVersions[len(known.SupportedVersions)-1], nil
}

// Need is the need for the programs.
var Need = netnstest.Needing("containerd, runc and the reference CNI plugins (run e2e/setup.sh)", func() error {
	_, errRunc := exec.LookPath("runc")
	_, errPlugins := os.Stat(filepath.Join(Plugins, "ptp"))
	errs := []error{errRunc, errPlugins}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		_, err := exec.LookPath(filepath.Join(binDir(""), name))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
})

// binDir is where containerd's programs are.
func binDir(dir string) string { return cmp.Or(dir, newest("bin", "/usr/bin")) }

// Dirs are the directories that [machine.Options] should have empty, and those in
// memory.
func Dirs() (empty, memory []string) {
	return []string{CNIBinDir, CNIConfDir, CNICache, State}, []string{Root}
}

// Options are what may be different. The zero Options run the distribution's
// containerd.
type Options struct {
	// BinDir is where containerd, its shim and ctr are; "" is /usr/bin, or with
	// MESHCNI_E2E_RUNTIME=newest where setup.sh has built them.
	BinDir string
	// Pause is the image of the sandboxes' own container; it has to be imported.
	Pause string
	// LogLevel is containerd's; "" is debug, which has the calls of plugins.
	LogLevel string
	// Images are archives to import.
	Images []string
	// Metrics is the address, with port, where containerd serves its metrics; "" is
	// nowhere.
	Metrics string
}

// Runtime is a running containerd.
type Runtime struct {
	// Version is what containerd --version says of it, as 1.6.20~ds1.
	Version string
	o       Options
	config  string
	process *proctest.Process
	conn    *grpc.ClientConn
	// Pods and Images are the two services of the CRI.
	cri.RuntimeServiceClient
	Images cri.ImageServiceClient
}

// Start starts containerd, waits until it answers and imports the images. Whoever
// starts it stops it.
func Start(o Options) (*Runtime, error) {
	if o.LogLevel == "" {
		o.LogLevel = "debug"
	}
	o.BinDir = binDir(o.BinDir)
	r := &Runtime{o: o, config: filepath.Join(machine.Dir, "containerd.toml")}
	out, err := exec.Command(r.program("containerd"), "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("version of containerd: %w", err)
	}
	if fields := strings.Fields(string(out)); len(fields) > 2 {
		r.Version = strings.TrimPrefix(fields[2], "v")
	}
	if err := os.WriteFile(r.config, []byte(r.settings()), 0o600); err != nil {
		return nil, err
	}
	if err := r.Boot(); err != nil {
		return nil, err
	}
	for _, path := range o.Images {
		if err := r.Import(path); err != nil {
			r.Kill()
			return nil, err
		}
	}
	return r, nil
}

// Boot starts containerd again after [Runtime.Kill] or [Runtime.Stop].
func (r *Runtime) Boot() (err error) {
	r.process, err = proctest.Start(proctest.Options{
		Dir: machine.Dir, Name: "containerd",
		Env: []string{"PATH=" + r.o.BinDir + ":" + os.Getenv("PATH") + ":/usr/sbin:/sbin"},
	}, r.program("containerd"), "--config", r.config)
	if err != nil {
		return err
	}
	if r.conn == nil {
		r.conn, err = grpc.NewClient("unix://"+Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second}))
		if err != nil {
			r.Kill()
			return err
		}
		r.RuntimeServiceClient, r.Images = cri.NewRuntimeServiceClient(r.conn), cri.NewImageServiceClient(r.conn)
	}
	r.conn.ResetConnectBackoff()
	return r.process.WaitFor(time.Minute, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		r.conn.ResetConnectBackoff()
		_, err := r.RuntimeServiceClient.Version(ctx, &cri.VersionRequest{})
		return err
	})
}

// Kill ends containerd as a crash does; containers go on.
func (r *Runtime) Kill() { r.process.Kill() }

// Stop ends containerd; containers go on.
func (r *Runtime) Stop() error { return r.process.Stop(20 * time.Second) }

// Log is containerd's log so far.
func (r *Runtime) Log() string { return r.process.Log() }

// Tail is the end of containerd's log.
func (r *Runtime) Tail(n int) string { return r.process.Tail(n) }

// NetworkReady is nil when pods with a network of their own can be started, and
// else what the runtime says is in the way. A kubelet starts none then, whatever
// they are for.
func (r *Runtime) NetworkReady(ctx context.Context) error {
	status, err := r.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range status.GetStatus().GetConditions() {
		if c.Type == cri.NetworkReady && !c.Status {
			return fmt.Errorf("network is not ready: %s: %s", c.Reason, c.Message)
		}
	}
	return nil
}

// UserNamespaces reports whether pods can have user namespaces of their own.
func (r *Runtime) UserNamespaces(ctx context.Context) bool {
	status, err := r.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return false
	}
	for _, h := range status.GetRuntimeHandlers() {
		if h.GetName() == "" { // the one that pods get which ask for none
			return h.GetFeatures().GetUserNamespaces()
		}
	}
	return false
}

// Networks are the configurations that containerd has loaded and will use for the
// next sandbox, as it tells them. It follows its directory with a delay.
func (r *Runtime) Networks(ctx context.Context) (string, error) {
	status, err := r.Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return "", err
	}
	return status.Info["cniconfig"], nil
}

func (r *Runtime) program(name string) string { return filepath.Join(r.o.BinDir, name) }

// Import makes the images of an archive (docker-archive or OCI layout) known to
// the CRI.
func (r *Runtime) Import(archive string) error {
	out, err := exec.Command(r.program("ctr"), "--address", Socket, "--namespace", "k8s.io", "images", "import", archive).CombinedOutput()
	if err != nil {
		return fmt.Errorf("import %s: %w\n%s", archive, err, out)
	}
	return nil
}

// settings is the configuration file. Version 1 of containerd and version 2 have
// the same under other names.
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
	// Control groups of huge pages are missing on many machines; a score of the
	// out-of-memory killer below one's own takes a right that a container has not.
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
	if strings.HasPrefix(r.Version, "1.") {
		format = v1
	}
	return fmt.Sprintf(format, r.o.Pause, r.o.LogLevel, r.o.Metrics)
}
