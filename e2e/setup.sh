#!/bin/sh
# Gets what the end-to-end tests run, once per machine: from the distribution
# containerd, runc, the reference CNI plugins and etcd; from .ci/kube the API
# server, and more of Kubernetes if named. Prints nothing and takes a fraction of
# a second when all is there already.
#
#   e2e/setup.sh [kube-controller-manager kube-scheduler kubelet …]
#
# With MESHCNI_E2E_RUNTIME=newest in the environment, as then also for the tests,
# containerd, runc and the reference plugins are built in newer versions than the
# distribution's: with version 1.1 of the CNI specification, which has STATUS, and
# with user namespaces for pods.
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
if [ "${MESHCNI_E2E_RUNTIME:-}" = newest ]; then
	need gcc gcc
	need pkg-config pkg-config
	pkg-config libseccomp 2>/dev/null || missing="$missing libseccomp-dev libc6-dev"
fi

if [ -n "$missing" ]; then
	echo "installing$missing"
	as_root=
	[ "$(id -u)" -eq 0 ] || as_root=sudo
	$as_root apt-get -o DPkg::Lock::Timeout=300 update -qq
	# The packages may start services of their own. They are left to the
	# distribution: the tests use other processes, with files of their own.
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive $as_root apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $missing >/dev/null
fi

# A cluster is spoken to with kubectl.
[ $# -eq 0 ] || command -v kubectl >/dev/null 2>&1 || set -- "$@" kubectl

if [ "${MESHCNI_E2E_RUNTIME:-}" = newest ]; then
	"$(dirname "$0")/../.ci/runc"
	containerd=v2.4.2
	dir=${MESHCNI_CACHE:-$(cd "$(dirname "$0")/.." && pwd)/.cache}/runtime-newest
	if [ "$(cat "$dir/containerd.version" 2>/dev/null)" != "$containerd" ]; then
		echo "building containerd $containerd (some minutes)"
		for name in containerd containerd-shim-runc-v2 ctr; do
			GOBIN=$dir/bin CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=mod nice \
				go install -ldflags '-s -w' "github.com/containerd/containerd/v2/cmd/$name@$containerd"
		done
		echo "$containerd" >"$dir/containerd.version"
	fi
fi

exec "$(dirname "$0")/../.ci/kube" kube-apiserver "$@"
