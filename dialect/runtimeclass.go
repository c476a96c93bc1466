package dialect

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/node/runtimeclass"
)

// SandboxedClasses are names of RuntimeClasses, and words in them, of runtimes that give a pod a kernel or a network stack of its
// own, where the rules see none of its packets: Kata and its clouds' names, gVisor, and machines by other makers. A name is but a
// hint: an administrator chooses it, and what it runs is its handler's. See [Options].
var SandboxedClasses = []string{
	"kata", "katacontainers", "gvisor", "runsc", "runv", "rund", "firecracker", "cloudhypervisor", "clh", "quark", "kuasar", "urunc", "edera", "peerpods",
}

// sandboxed returns the bypass of a pod whose RuntimeClass is by its name one of the classes; nil: the default ones.
func sandboxed(pod *corev1.Pod, classes []string) []Bypass {
	if len(classes) == 0 {
		classes = SandboxedClasses
	}
	if name := pod.Spec.RuntimeClassName; name != nil && runtimeclass.Is(*name, classes) {
		return []Bypass{{Code: BypassSandboxed, RuntimeClass: *name}}
	}
	return nil
}
