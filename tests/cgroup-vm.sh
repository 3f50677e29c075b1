#!/usr/bin/env bash
# Limits by cgroups, end to end, in a virtual machine: for machines where version 2 has no controllers to give (on many, version 1
# has them). Boots Debian's cloud kernel with a file system of what the tests need, runs behaviour/processes_cgroups.rs there, as
# root and as somebody, and fails where a test fails or is skipped. By hand, or HARNESS_VM=1 .ci/run; some minutes.
#
# Needs: qemu-system-x86 busybox-static cpio binutils util-linux. HARNESS_VM_KERNEL=FILE takes another kernel, which must have memory
# and pids controllers, an initramfs and a serial console built in; HARNESS_VM_ACCEL=kvm is quicker where it works.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=target/vm
root=$cache/root
for program in qemu-system-x86_64 busybox cpio strip setpriv; do
  command -v "$program" >/dev/null || { echo "this needs $program: apt-get install qemu-system-x86 busybox-static cpio binutils util-linux" >&2; exit 2; }
done
rm -rf "$root"
mkdir -p "$root"/{bin,programs,proc,sys,dev,tmp,etc,run}
chmod 1777 "$root/tmp"

kernel=${HARNESS_VM_KERNEL:-}
if [ -z "$kernel" ]; then
  kernel=$(find "$cache/kernel" -name 'vmlinuz-*' 2>/dev/null | head -1 || true)
fi
if [ -z "$kernel" ]; then
  package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
  (cd "$cache" && apt-get download -qq "$package")
  dpkg-deb -x "$cache/$package"_*.deb "$cache/kernel"
  rm "$cache/$package"_*.deb
  kernel=$(find "$cache/kernel" -name 'vmlinuz-*' | head -1)
fi

cargo build --quiet --locked -p harnessd -p harnessctl
tests=$(cargo test --locked -p harness-tests --test behaviour --no-run 2>&1 | sed -n 's/.*Executable .*(\(.*\))$/\1/p')
cp target/debug/harnessd target/debug/harnessctl "$root/programs/"
cp "$tests" "$root/programs/behaviour"
strip "$root"/programs/*
cp "$(command -v busybox)" "$root/bin/busybox"
# The tools of this machine rather than those of busybox, as far as the tests use them.
for tool in sh dd sleep cat sed touch setpriv; do
  cp -L "$(command -v "$tool")" "$root/bin/$tool"
done
ldd "$root"/programs/* "$root"/bin/{sh,dd,sleep,cat,sed,touch,setpriv} | grep -o '/[^ :]*\.so[^ :]*' | sort -u | while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
done
echo 'root:x:0:0:root:/tmp:/bin/sh' >"$root/etc/passwd"

cat >"$root/init" <<'INIT'
#!/bin/busybox sh
export PATH=/bin HOME=/tmp HARNESS_PROGRAMS=/programs
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
busybox mkdir -p /dev/pts
busybox mount -t devpts pts /dev/pts
busybox mount -t tmpfs -o mode=1777 tmp /tmp
busybox mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo "+memory +pids" >/sys/fs/cgroup/cgroup.subtree_control
echo "kernel $(cat /proc/sys/kernel/osrelease); controllers $(cat /sys/fs/cgroup/cgroup.controllers)"
/programs/behaviour --test-threads 1 --nocapture processes_cgroups::
echo "tests ended with $?"
busybox poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc) | gzip -1 >"$cache/initramfs.gz"

# Nothing but what is built into that kernel is needed: no disk, no network.
timeout 900 qemu-system-x86_64 -machine "accel=${HARNESS_VM_ACCEL:-tcg}" -cpu max -smp 2 -m 1536 -display none -monitor none -serial stdio -no-reboot -nodefaults \
  -kernel "$kernel" -initrd "$cache/initramfs.gz" -append "console=ttyS0 quiet panic=-1 cgroup_no_v1=all" </dev/null | tr -d '\r' | tee "$cache/log"
grep -q '^tests ended with 0$' "$cache/log" || { echo "the tests in the virtual machine failed" >&2; exit 1; }
! grep -q 'skipped:' "$cache/log" || { echo "tests were skipped in the virtual machine" >&2; exit 1; }
