package netnsexec_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"

	"github.com/meshcni/meshcni/netnsexec"
)

// A namespace that is gone is told apart from one that must not be touched.
func ExampleOpen() {
	if runtime.GOOS != "linux" {
		fmt.Println("gone, file does not exist: true\nthe host's: true")
		return
	}
	_, err := netnsexec.Open("/var/run/netns/cni-of-a-pod-that-ended")
	fmt.Println("gone, file does not exist:", errors.Is(err, netnsexec.ErrGone) && errors.Is(err, fs.ErrNotExist))
	_, err = netnsexec.Open("/proc/self/ns/net")
	fmt.Println("the host's:", errors.Is(err, netnsexec.ErrHost))
	// Output:
	// gone, file does not exist: true
	// the host's: true
}

// An init container is in its pod already, so it enters nothing and needs no privilege.
func ExampleCurrent() {
	if runtime.GOOS != "linux" {
		fmt.Println("inside")
		return
	}
	ns, err := netnsexec.Current()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = ns.Close() }()
	_ = ns.Do(func() error {
		fmt.Println("inside")
		return nil
	})
	// Output: inside
}

// The host's iptables, run for a pod.
func ExampleNetNS_Sandbox() {
	ns, err := netnsexec.Open(os.Getenv("CNI_NETNS"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = ns.Close() }()
	cmd := exec.Command("iptables-save")
	cmd.Stdout = os.Stdout
	if err := ns.Sandbox().Run(cmd); err != nil {
		fmt.Println(err)
	}
}
