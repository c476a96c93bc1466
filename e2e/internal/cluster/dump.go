package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/meshcni/meshcni/e2e/internal/machine"
)

// keepLogs copies the logs of a failed run to where they outlive the node.
func keepLogs() {
	to := machine.Cache("e2e", "logs")
	if err := os.RemoveAll(to); err != nil {
		return
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return
	}
	var from []string
	for _, pattern := range []string{logDir + "/*.log", machine.Dir + "/server/*.log", "/var/run/meshcni/*.log"} {
		found, _ := filepath.Glob(pattern)
		from = append(from, found...)
	}
	for _, f := range from {
		_ = copyFile(filepath.Join(to, filepath.Base(f)), f)
	}
	fmt.Printf("cluster: the logs are in %s: %s\n", to, strings.Join(bases(from), " "))
}

func bases(paths []string) (names []string) {
	for _, p := range paths {
		names = append(names, filepath.Base(p))
	}
	return names
}
