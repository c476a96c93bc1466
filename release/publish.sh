#!/usr/bin/env bash
# Pushes the image and the chart of a release to the registry that it was made for, and signs them. What is there already stays; a
# version that is there with another content is an error, and nothing is changed.
#
#   release/publish.sh DIR REGISTRY COSIGN-KEY
#
# It takes crane, helm, cosign and jq, logged in to the registry; $COSIGN_PASSWORD opens the key. PLAIN_HTTP=1 is for a registry
# without TLS.
set -euo pipefail
dir=$1 registry=$2 key=$3
fail() { echo "publish: $*" >&2 && exit 1; }
http=() signing=()
[ -z "${PLAIN_HTTP:-}" ] || { http=(--plain-http) signing=(--allow-http-registry); }

(cd "$dir" && sha256sum --check --strict --quiet checksums.txt) || fail "$dir is not as it was released"
chart=$(echo "$dir"/meshcni-*.tgz)
number=${chart##*/meshcni-} number=${number%.tgz}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -xf "$dir/meshcni_${number}_image_oci.tar" -C "$work"
index=$(jq -r '.manifests[0].digest' "$work/index.json")
name=$registry/meshcni/meshcni charts=$registry/meshcni/charts
helm show chart "$chart" | grep -q "meshcni.io/image-registry: $registry\$" || fail "$chart was not made for registry $registry, which it has to name"

# of prints the digest that a file with a registry's answer names, or nothing where there is no such tag.
asked() { # reference
  crane manifest "$1" 2>"$work/said" || { grep -qE 'MANIFEST_UNKNOWN|NAME_UNKNOWN' "$work/said" || fail "$1: $(cat "$work/said")"; }
}
image=$(asked "$name:v$number" | sha256sum | cut -d' ' -f1)
empty=$(sha256sum </dev/null | cut -d' ' -f1)
layer=$(asked "$charts/meshcni:$number" | jq -r '.layers[0].digest')
[ "$image" = "$empty" ] || [ "sha256:$image" = "$index" ] || fail "$name:v$number is another image, sha256:$image, not $index"
[ -z "$layer" ] || [ "$layer" = "sha256:$(sha256sum "$chart" | cut -d' ' -f1)" ] || fail "$charts/meshcni:$number is another chart"
[ "$image" != "$empty" ] || crane push "$work" "$name:v$number"
[ -n "$layer" ] || helm push "${http[@]}" "$chart" "oci://$charts"

# The index, the images in it, and the chart as the registry has it now.
cosign sign "${signing[@]}" --yes --recursive --tlog-upload=false --use-signing-config=false --key "$key" "$name@$index"
cosign sign "${signing[@]}" --yes --tlog-upload=false --use-signing-config=false --key "$key" "$charts/meshcni@$(crane digest "$charts/meshcni:$number")"
