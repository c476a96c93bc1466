#!/bin/sh
# Gets what the integration suite runs against, once per machine: etcd from the
# distribution, and kube-apiserver from .ci/kube. Prints nothing and takes a
# fraction of a second when both are there already.
set -eu

if ! command -v etcd >/dev/null 2>&1; then
	echo "installing etcd-server"
	as_root=
	[ "$(id -u)" -eq 0 ] || as_root=sudo
	$as_root apt-get update -qq
	# The package starts a service of its own; policy-rc.d is not ours to write,
	# so the service is left to the distribution: the suite uses other ports.
	DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends etcd-server >/dev/null
fi

exec "$(dirname "$0")/../../.ci/kube" kube-apiserver
