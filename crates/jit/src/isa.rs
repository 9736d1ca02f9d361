//! The instructions of both vector sizes, one row for each.

use iced_x86::{Code, Register};

use crate::{
    Tier,
    steps::{Code as Step, Compare},
};

/// A vector instruction set.
pub(crate) struct Isa {
    /// Numbers of a vector.
    pub(crate) lanes: usize,
    /// Registers that values may have; one more is for what an instruction needs in between, and in narrow vectors one for a mask.
    pub(crate) registers: u8,
    /// The first vector register.
    pub(crate) first: Register,
    /// Whether there are masks in registers of their own, and a product with a power of two.
    pub(crate) wide: bool,
    pub(crate) load: Code,
    pub(crate) store: Code,
    pub(crate) broadcast: Code,
    /// Words of 16 bits, each made 32.
    pub(crate) widen: Code,
    pub(crate) broadcast_half: Code,
    /// Bytes, each made 32 bits.
    pub(crate) widen_byte: Code,
    pub(crate) broadcast_byte: Code,
    pub(crate) shift_left: Code,
    pub(crate) shift_right: Code,
    pub(crate) shift_right_signed: Code,
    pub(crate) compare: Code,
    pub(crate) blend: Code,
    pub(crate) sqrt: Code,
    pub(crate) number_of_word: Code,
    /// The number of one integer of 64 bits.
    pub(crate) number_of_integer: Code,
    /// One number for all, from a register.
    pub(crate) spread: Code,
    /// The first number, to memory.
    pub(crate) store_first: Code,
    pub(crate) store_first_half: Code,
    /// The sum of the first numbers.
    pub(crate) add_first: Code,
    /// `a * b + c` into `a`, `a * c + b` into `a`, `b * c + a` into `a`.
    pub(crate) fma: [Code; 3],
    /// The same of `c - a * b`.
    pub(crate) negated_fma: [Code; 3],
}

pub(crate) static AVX2: Isa = Isa {
    lanes: 8,
    registers: 14,
    first: Register::YMM0,
    wide: false,
    load: Code::VEX_Vmovups_ymm_ymmm256,
    store: Code::VEX_Vmovups_ymmm256_ymm,
    broadcast: Code::VEX_Vbroadcastss_ymm_m32,
    widen: Code::VEX_Vpmovzxwd_ymm_xmmm128,
    broadcast_half: Code::VEX_Vpbroadcastw_ymm_xmmm16,
    widen_byte: Code::VEX_Vpmovzxbd_ymm_xmmm64,
    broadcast_byte: Code::VEX_Vpbroadcastb_ymm_xmmm8,
    shift_left: Code::VEX_Vpslld_ymm_ymm_imm8,
    shift_right: Code::VEX_Vpsrld_ymm_ymm_imm8,
    shift_right_signed: Code::VEX_Vpsrad_ymm_ymm_imm8,
    compare: Code::VEX_Vcmpps_ymm_ymm_ymmm256_imm8,
    blend: Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm,
    sqrt: Code::VEX_Vsqrtps_ymm_ymmm256,
    number_of_word: Code::VEX_Vcvtdq2ps_ymm_ymmm256,
    number_of_integer: Code::VEX_Vcvtsi2ss_xmm_xmm_rm64,
    spread: Code::VEX_Vbroadcastss_ymm_xmm,
    store_first: Code::VEX_Vmovss_m32_xmm,
    store_first_half: Code::VEX_Vpextrw_r32m16_xmm_imm8,
    add_first: Code::VEX_Vaddss_xmm_xmm_xmmm32,
    fma: [
        Code::VEX_Vfmadd213ps_ymm_ymm_ymmm256,
        Code::VEX_Vfmadd132ps_ymm_ymm_ymmm256,
        Code::VEX_Vfmadd231ps_ymm_ymm_ymmm256,
    ],
    negated_fma: [
        Code::VEX_Vfnmadd213ps_ymm_ymm_ymmm256,
        Code::VEX_Vfnmadd132ps_ymm_ymm_ymmm256,
        Code::VEX_Vfnmadd231ps_ymm_ymm_ymmm256,
    ],
};

pub(crate) static AVX512: Isa = Isa {
    lanes: 16,
    registers: 31,
    first: Register::ZMM0,
    wide: true,
    load: Code::EVEX_Vmovups_zmm_k1z_zmmm512,
    store: Code::EVEX_Vmovups_zmmm512_k1z_zmm,
    broadcast: Code::EVEX_Vbroadcastss_zmm_k1z_xmmm32,
    widen: Code::EVEX_Vpmovzxwd_zmm_k1z_ymmm256,
    broadcast_half: Code::EVEX_Vpbroadcastw_zmm_k1z_xmmm16,
    widen_byte: Code::EVEX_Vpmovzxbd_zmm_k1z_xmmm128,
    broadcast_byte: Code::EVEX_Vpbroadcastb_zmm_k1z_xmmm8,
    shift_left: Code::EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8,
    shift_right: Code::EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8,
    shift_right_signed: Code::EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8,
    compare: Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae,
    blend: Code::EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32,
    sqrt: Code::EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er,
    number_of_word: Code::EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er,
    number_of_integer: Code::EVEX_Vcvtsi2ss_xmm_xmm_rm64_er,
    spread: Code::EVEX_Vbroadcastss_zmm_k1z_xmmm32,
    store_first: Code::EVEX_Vmovss_m32_k1_xmm,
    store_first_half: Code::EVEX_Vpextrw_r32m16_xmm_imm8,
    add_first: Code::EVEX_Vaddss_xmm_k1z_xmm_xmmm32_er,
    fma: [
        Code::EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er,
        Code::EVEX_Vfmadd132ps_zmm_k1z_zmm_zmmm512b32_er,
        Code::EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er,
    ],
    negated_fma: [
        Code::EVEX_Vfnmadd213ps_zmm_k1z_zmm_zmmm512b32_er,
        Code::EVEX_Vfnmadd132ps_zmm_k1z_zmm_zmmm512b32_er,
        Code::EVEX_Vfnmadd231ps_zmm_k1z_zmm_zmmm512b32_er,
    ],
};

impl Isa {
    /// The instruction set of a tier; none for the interpreter.
    pub(crate) fn of(tier: Tier) -> Option<&'static Self> {
        match tier {
            Tier::Interpreter => None,
            Tier::Avx2 => Some(&AVX2),
            Tier::Avx512 => Some(&AVX512),
        }
    }

    /// Bytes of a vector.
    pub(crate) const fn bytes(&self) -> usize {
        4 * self.lanes
    }

    /// The instruction of a step of two values, and whether they may change places.
    pub(crate) fn binary(&self, step: Step) -> Option<(Code, bool)> {
        let (narrow, wide, commutes) = match step {
            Step::Add => {
                (Code::VEX_Vaddps_ymm_ymm_ymmm256, Code::EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er, true)
            }
            Step::Sub => {
                (Code::VEX_Vsubps_ymm_ymm_ymmm256, Code::EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er, false)
            }
            Step::Mul => {
                (Code::VEX_Vmulps_ymm_ymm_ymmm256, Code::EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er, true)
            }
            Step::Div => {
                (Code::VEX_Vdivps_ymm_ymm_ymmm256, Code::EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er, false)
            }
            Step::Max => {
                (Code::VEX_Vmaxps_ymm_ymm_ymmm256, Code::EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae, false)
            }
            Step::Min => {
                (Code::VEX_Vminps_ymm_ymm_ymmm256, Code::EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae, false)
            }
            Step::And => (Code::VEX_Vandps_ymm_ymm_ymmm256, Code::EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32, true),
            Step::Or => (Code::VEX_Vorps_ymm_ymm_ymmm256, Code::EVEX_Vpord_zmm_k1z_zmm_zmmm512b32, true),
            Step::Xor => (Code::VEX_Vxorps_ymm_ymm_ymmm256, Code::EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32, true),
            Step::AddWords => {
                (Code::VEX_Vpaddd_ymm_ymm_ymmm256, Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, true)
            }
            Step::SubWords => {
                (Code::VEX_Vpsubd_ymm_ymm_ymmm256, Code::EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32, false)
            }
            Step::Scale if self.wide => {
                return Some((Code::EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er, false));
            }
            _ => return None,
        };
        Some((if self.wide { wide } else { narrow }, commutes))
    }
}

impl Compare {
    /// The processor's number of a comparison, which is false for NaN but where it asks for it.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Equal => 0,
            Self::Unordered => 3,
            Self::Less => 17,
            Self::LessEqual => 18,
        }
    }

    /// The number of the opposite comparison.
    pub(crate) const fn opposite(self) -> u32 {
        match self {
            Self::Equal => 4,
            Self::Unordered => 7,
            Self::Less => 21,
            Self::LessEqual => 22,
        }
    }
}
