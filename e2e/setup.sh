#!/bin/sh
# Gets what the end-to-end tests run, once per machine: from the distribution
# containerd, runc, the reference CNI plugins and etcd; from .ci/kube the API
# server, and more of Kubernetes if named. Prints nothing and takes a fraction of
# a second when all is there already.
#
#   e2e/setup.sh [kube-controller-manager kube-scheduler kubelet …]
set -eu

missing=
need() { [ -x "$1" ] || command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need containerd containerd
need runc runc
need /usr/lib/cni/ptp containernetworking-plugins
need etcd etcd-server
need iptables iptables
need nft nftables
need nsenter util-linux

if [ -n "$missing" ]; then
	echo "installing$missing"
	as_root=
	[ "$(id -u)" -eq 0 ] || as_root=sudo
	$as_root apt-get update -qq
	# The packages may start services of their own. They are left to the
	# distribution: the tests use other processes, with files of their own.
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

# A cluster is spoken to with kubectl.
[ $# -eq 0 ] || command -v kubectl >/dev/null 2>&1 || set -- "$@" kubectl

exec "$(dirname "$0")/../.ci/kube" kube-apiserver "$@"
