// Package runtime has the tests of the plugin and the agent under a real container
// runtime, containerd with runc, with pods that a real API server serves, and
// packets that show what became of them. There is no kubelet: the tests ask by CRI
// for what one would. There is nothing in it to import.
//
// e2e/setup.sh gets what they need; without it they are skipped, or fail where
// CI=true.
package runtime
