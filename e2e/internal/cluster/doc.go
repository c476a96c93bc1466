// Package cluster runs a real Kubernetes cluster of one node for a test binary: etcd, API server, controller manager,
// scheduler, kubelet, containerd and runc, none of them changed, with images of our own and no registry. There is no
// kube-proxy and no DNS: the address of Service "kubernetes" is one of the node's own, at which the API server listens.
// All of it is on a machine of its own; see package machine.
package cluster
