package nodeproxytest_test

import (
	"testing"

	"github.com/meshcni/meshcni/internal/testing/nodeproxytest"
)

// In a test: one proxy in its own process, and another beside it that refuses the first pod.
func ExampleStartProcess() {
	// func TestMain(m *testing.M) {
	// 	nodeproxytest.RunIfChild()
	// 	os.Exit(m.Run())
	// }
	_ = func(t *testing.T, socket string) {
		old := nodeproxytest.StartProcess(t, nodeproxytest.Options{Socket: socket})
		fresh := nodeproxytest.StartProcess(t, nodeproxytest.Options{Socket: socket, Faults: nodeproxytest.Faults{Nack: 1}})
		old.Terminate() // its listeners close, its connections live on for 25 s
		for _, pod := range fresh.State().Pods {
			t.Log(pod.UID, pod.NetNS, pod.Accepted[15001])
		}
	}
}
