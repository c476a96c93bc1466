#!/bin/sh
# Gets what the integration suite runs against, once per machine: etcd from the
# distribution, and kube-apiserver built as an ordinary Go module dependency of a
# throw-away module under the project's ignored .cache. Prints nothing and takes
# a fraction of a second when both are there already.
#
#   KUBE_VERSION  the server to build (default v1.36.3)
#   MESHCNI_CACHE where to keep it    (default .cache in the project's root)
set -eu

version=${KUBE_VERSION:-v1.36.3}
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${MESHCNI_CACHE:-$root/.cache}
server=$cache/bin/kube-apiserver-$version
module=$cache/kube-$version

if ! command -v etcd >/dev/null 2>&1; then
	echo "installing etcd-server"
	as_root=
	[ "$(id -u)" -eq 0 ] || as_root=sudo
	$as_root apt-get update -qq
	# The package starts a service of its own; policy-rc.d is not ours to write,
	# so the service is left to the distribution: the suite uses other ports.
	DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends etcd-server >/dev/null
fi

[ ! -x "$server" ] || exit 0
echo "building kube-apiserver $version (some minutes the first time)"
mkdir -p "$cache/bin" "$module"
cd "$module"

# k8s.io/kubernetes replaces its staging modules by directories of its own tree;
# a dependent has to replace each by the published module of the same release.
staging=v0.${version#v1.}
gomod=$(GOWORK=off go mod download -json "k8s.io/kubernetes@$version" | sed -n 's/.*"GoMod": "\(.*\)",/\1/p')
{
	echo "module kube.invalid/server"
	grep -E '^go ' "$gomod"
	grep -E '^godebug [^(]' "$gomod" || true
	echo "require k8s.io/kubernetes $version"
	echo "replace ("
	sed -n 's#^[[:space:]]*\(k8s.io/[a-z0-9./-]*\) => ./staging.*#\1#p' "$gomod" | sort -u |
		while read -r m; do echo "	$m => $m $staging"; done
	echo ")"
} >go.mod
cat >tools.go <<'GO'
//go:build tools

package tools

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
GO

minor=${version#v1.}
component=k8s.io/component-base/version
GOWORK=off CGO_ENABLED=0 nice go build -mod=mod -trimpath \
	-ldflags "-s -w -X $component.gitVersion=$version -X $component.gitMajor=1 -X $component.gitMinor=${minor%%.*}" \
	-o "$server.new" k8s.io/kubernetes/cmd/kube-apiserver
mv "$server.new" "$server"
