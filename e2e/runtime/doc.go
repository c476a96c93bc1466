// Package runtime tests the plugin and the agent under real container runtimes, containerd and CRI-O. A real API server
// serves the pods, and packets show where connections go. There is no kubelet: the tests make its CRI calls. It has tests
// only.
//
// e2e/setup.sh and .ci/crio install what they need. Without it they are skipped, or fail where CI=true.
package runtime
